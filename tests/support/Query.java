import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.sql.*;

/** Runs a statement of SQL and prints what it finds: a JSON array for each row. */
public class Query {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        Connection connection = DriverManager.getConnection(arguments[0]);
        Statement statement = connection.createStatement();
        if (statement.execute(arguments[1])) {
            ResultSet rows = statement.getResultSet();
            while (rows.next()) {
                ArrayNode row = json.createArrayNode();
                for (int i = 1; i <= rows.getMetaData().getColumnCount(); i++) {
                    row.add(rows.getString(i));
                }
                System.out.println(row);
            }
        }
        connection.close();
    }
}
